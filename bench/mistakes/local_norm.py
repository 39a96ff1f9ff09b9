from bench.mistakes.base import Lab, mistake
from bench.mistakes.measures import LOSS, METRIC, SPEED

# Batch norm's error on ImageNet rises rapidly with fewer images per worker, and most from here on down (Wu and He 2018,
# "Group Normalization", https://arxiv.org/abs/1803.08494, figure 1).
FEW_IMAGES = 8


@mistake(
    "batch norm over the few examples of one device",
    "statistics of a few examples are noisy, and training suffers",
    "nn.SyncBatchNorm.convert_sync_batchnorm(model), a larger batch per device, or group norm",
    needs="norm",
    switch={"norm": "batch"},
    lab=Lab(
        "What do batch norms learn from a few examples per device?",
        "The loss is noisy and higher than on one device with the same global batch.",
        (LOSS.expected("up"), METRIC, SPEED),
        workload={"norm": "sync", "per_device_batch": 7, "epochs": 1, "lr": 0.005},
        changes=("norm", "images per norm layer", "buffers"),
        varies=("norm",),
    ),
    case="wrong/norm_two_images",
)
def local_norm(observed: dict) -> str | None:
    """Running means that differ by rank are not a mistake: in some modes each rank keeps its own by design."""
    norm = observed.get("norm") or {}
    if not (observed.get("trains") and observed.get("exchanges", True) and observed.get("num_devices", 1) > 1):
        return None
    if "BatchNorm" not in norm.get("kind", "") or norm["synchronised"] or norm["images"] >= FEW_IMAGES:
        return None
    apart = norm.get("disagreement")
    aside = "" if apart is None else f"; at the end the ranks' running means differ by {apart:.2g} standard deviations"
    return f"{norm['kind']} over {norm['images']} examples per device (few: below {FEW_IMAGES}){aside}"
