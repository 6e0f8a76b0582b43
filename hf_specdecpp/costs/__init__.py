"""What a round costs: profiles, learning them in a run, measuring them, keeping them."""
