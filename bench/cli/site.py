from bench.cli.base import CLONE, COURSE, HOROVOD, NAME, Command
from bench.config.flags import SWITCH


def run(args) -> int:
    from bench.course import site

    print(f"site: {site.build(bool(args.quick))}")
    return 0


def slides(args) -> int:
    from bench.course import slides

    for path in slides.build(args.name):
        print(path, flush=True)
    return 0


SLIDES = Command("site slides", "learn", "a chapter as slides: one HTML file in build/slides that needs no network",
                 "NAME=03", run=slides, needs=HOROVOD + COURSE + CLONE, flags={"--name": NAME})  # fmt: skip
COMMAND = Command(
    "site", "learn", "the course as web pages in build/site; executes chapters without outputs", "[QUICK=1]", run=run,
    needs=HOROVOD + COURSE + CLONE, flags={"--quick": SWITCH | {"help": "chapters at small sizes are enough"}},
    parts=(SLIDES,),
)  # fmt: skip
