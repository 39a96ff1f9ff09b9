"""Every picture of a forecast, by name."""

from bench.without_training.forecast.result import Forecast
from bench.without_training.forecast_pictures import efficiency, timeline, winner
from bench.without_training.forecast_pictures.points import Asked, Points


def figures(asked: Asked, found: list[Forecast], points: Points, folders: list[str]) -> dict:
    """Efficiency over devices; one step, and which mode wins, on as many devices as the forecast has at most. folders:
    where the points are from."""
    most = max(each.ranks for each in found)
    return {
        "forecast-efficiency": efficiency.draw(asked, found, points),
        "forecast-timeline": timeline.draw(asked, most, points),
        "forecast-winner": winner.draw(asked, most, folders),
    }
