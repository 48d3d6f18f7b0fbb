"""The OpenAI-compatible front of several engines."""
