"""The app's pieces: the live panel, what it is given, the gallery, and the queue before the engine."""
