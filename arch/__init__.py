"""What answers: the language in which sequence models are written. torch; knows no task."""
