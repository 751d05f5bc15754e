"""Converted models in the Hugging Face ecosystem: classes, conversion, folders, predicting, explaining, int8."""
