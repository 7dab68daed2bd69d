"""Models in GGUF files that come in a wheel or a zip, as folders of safetensors."""
