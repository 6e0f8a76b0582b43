"""`specdecpp bench`: what a pair gains on a machine and on prompts, measured, kept and drawn."""
