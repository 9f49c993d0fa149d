"""`python -m eagle3_assets`: the command `eagle3`, where its script is not on the PATH (an environment laid over another one, a pod)."""

from eagle3_assets.cli.main import main

if __name__ == "__main__":
    main()
