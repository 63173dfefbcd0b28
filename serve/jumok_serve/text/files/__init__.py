"""Files: texts to translate, and all between them as it was written."""
