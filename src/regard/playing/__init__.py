"""A Gato that plays: it acts in environments, and its play is measured and read. Needs the extra ``control``."""

from regard.playing.measure_play import PlayedEnvironment, measure_play
from regard.playing.play import play_episodes
from regard.playing.read_episode import read_episode

__all__ = ["PlayedEnvironment", "measure_play", "play_episodes", "read_episode"]
