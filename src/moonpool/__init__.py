"""A shared KV-cache pool for LLM serving."""
