"""What proposes tokens: a draft model, the text itself, a table of the target's thoughts, and all of them in one tree."""
