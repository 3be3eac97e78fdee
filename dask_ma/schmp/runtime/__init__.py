"""The pipelined runtime of programs: schedulers, services, messages, the loop."""
