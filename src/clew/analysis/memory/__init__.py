"""Where the memory of a run goes: storages from birth to end, what they are, the peak, growth."""
