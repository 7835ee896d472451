import signal

from hypothesis import settings

# A deadline would time the machine, not the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

# A shell that runs the tests in the background has them ignore Ctrl-C, and processes that
# they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
