"""What does a process that answers queries hold open?"""
