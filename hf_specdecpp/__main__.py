"""`python -m hf_specdecpp` is `specdecpp`, for launchers that start modules."""

from hf_specdecpp_cli import app

app()
