"""What users and our own tests drive clusters with: the deterministic simulator, fault injection, checkers."""
