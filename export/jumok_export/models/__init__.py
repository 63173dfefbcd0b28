"""PyTorch translation models: Transformers, T5 and recurrent encoder-decoders."""
