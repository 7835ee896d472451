from hypothesis import settings

# A deadline would time the machine, not the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
