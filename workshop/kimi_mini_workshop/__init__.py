"""Where Kimi-mini is made and measured: its world, its training, the committed files. `python -m kimi_mini_workshop`.

Nothing of the platform imports this room at run time.
"""
