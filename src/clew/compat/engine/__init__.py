"""Engine code that only the older tools need."""
