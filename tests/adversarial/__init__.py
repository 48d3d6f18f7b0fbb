"""Black-box tests that try to break the pool from outside."""
