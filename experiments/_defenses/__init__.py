"""The defense studies: which defenses, who attacks them, what they cost, and the report."""
