"""Every picture of a forecast, by name."""

from bench.predict.pictures import efficiency, timeline, winner
from bench.predict.pictures.points import Asked, Points
from bench.predict.pictures.winner import Place
from bench.predict.step.result import Forecast


def figures(asked: Asked, found: list[Forecast], points: Points, others: list[Place] = ()) -> dict:
    """Efficiency over devices; one step, and which mode wins, on as many devices as the forecast has at most. others:
    what the map marks besides the forecast's own place."""
    most = max(each.ranks for each in found)
    return {
        "forecast-efficiency": efficiency.draw(asked, found, points),
        "forecast-timeline": timeline.draw(asked, most, points),
        "forecast-winner": winner.draw(asked, most, others),
    }
