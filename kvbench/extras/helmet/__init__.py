"""HELMET: tasks of question answering, ranking, recall and many examples, up to 128k tokens."""
