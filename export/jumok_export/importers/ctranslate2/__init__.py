"""Import of CTranslate2's converted models as bundles."""
