"""Models in the forms of others: Hugging Face's folders, and Google's checkpoints to read.

export.py writes folders, initial_weights.py reads any of them; huggingface.py, task_huggingface.py
and google.py know what is called how there, tensor_bundle.py TensorFlow's files.
"""
