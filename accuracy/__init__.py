"""How often Clew is right: faults planted in architectures, and questions with known answers.

`make accuracy` prints it.
"""
