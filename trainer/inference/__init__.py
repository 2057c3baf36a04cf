"""What a trained model is used for: opened, evaluated, asked for words and next sentences."""
