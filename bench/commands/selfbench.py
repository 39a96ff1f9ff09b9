"""`bench selfbench`: what the harness itself costs, against bare scripts."""

from bench.commands.base import whole
from bench.config.command_line import from_arguments
from bench.proof.selfbench import benchmark


def run(args) -> int:
    """Run the rounds, print the table, write the file."""
    rounds = 8 if args.rounds is None else whole("ROUNDS", args.rounds, at_least=2)
    return benchmark.run(from_arguments(args), rounds, args.only)
