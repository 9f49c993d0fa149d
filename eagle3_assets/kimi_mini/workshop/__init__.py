"""Where Kimi-mini is made and measured: its world, its training, the committed files. `python -m eagle3_assets.kimi_mini.workshop`.

Nothing of the platform imports this room at run time.
"""
