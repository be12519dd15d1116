"""How fast a run is read, a model trained, the loop goes."""
