"""`python -m hf_specdecpp` is `specdecpp`, for launchers that start modules."""

from .cli import app

app()
