"""vLLM's and SGLang's faces of the stand-in."""
