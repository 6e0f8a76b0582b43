"""What happened, and how it can be known: statistics, traces and their replay, conditions, files that survive."""
