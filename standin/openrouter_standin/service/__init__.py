"""The stand-in as a process: server, launcher, reference pages."""
