import psutil


def markdown(*blocks: str) -> str:
    return "\n\n".join(blocks) + "\n"


def cell(code: str, head: str = "python") -> str:
    return f"```{head}\n{code}\n```"


def sleeping(seconds: str) -> bool:
    return any(p.info["cmdline"] == ["sleep", seconds] for p in psutil.process_iter(["cmdline"]))
