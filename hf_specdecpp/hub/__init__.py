"""What comes from and goes to the Hub: models, data, heads."""
