"""What proposes tokens: a draft model, the text itself, a table of what the target thought of, or all in one tree."""
