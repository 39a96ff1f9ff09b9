"""What PROFILE=1 and MEMORY=1 look at after the timed steps: one step as a timeline, and what fills the memory."""
