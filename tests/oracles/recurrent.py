"""Recurrent encoder-decoders of 2014 and 2015, computed one sentence, step and source position at a time.

Encoder (Bahdanau 2015, section 3.2):       annotation_j = [forwards_j; backwards_j]
Decoder, with y an embedded token and h the last layer's state:

    cho        h_0 = tanh(W_s last)    h_t = cell([y_(t-1); last], h_(t-1))     gives readout([h_t; y_(t-1); last])
    bahdanau   h_0 = tanh(W_s last)    h_t = cell([y_(t-1); c_t], h_(t-1))      gives readout([h_t; y_(t-1); c_t])
               c_t = sum_j a_tj annotation_j, a_t from h_(t-1)
    luong      h_0 = last, m_0 = 0     h_t = cell([y_(t-1); m_(t-1)], h_(t-1))  gives m_t = tanh(W_c [c_t; h_t])
               c_t likewise, a_t from h_t

readout is maxout: the larger of each pair of numbers of W [..] + b. Cells follow torch's documentation of nn.GRU and
nn.LSTM.
Weights are matrices (out, in); annotations (length, hidden).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Vector = np.ndarray
State = tuple[Vector, ...]
"""(h,) of a GRU, (h, c) of an LSTM."""
Weigh = Callable[[Vector, np.ndarray], Vector]
"""(query, annotations) -> a weight for each annotation."""


class Cell(NamedTuple):
    """A cell with stacked gates: reset, update, new for a GRU; input, forget, cell, output for an LSTM."""

    of_input: np.ndarray
    of_state: np.ndarray
    input_bias: Vector
    state_bias: Vector


Step = Callable[[Cell, Vector, State], State]


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


def gru(cell: Cell, x: Vector, state: State) -> State:
    (h,) = state
    reset_x, update_x, new_x = np.split(cell.of_input @ x + cell.input_bias, 3)
    reset_h, update_h, new_h = np.split(cell.of_state @ h + cell.state_bias, 3)
    reset, update = sigmoid(reset_x + reset_h), sigmoid(update_x + update_h)
    new = np.tanh(new_x + reset * new_h)
    return ((1 - update) * new + update * h,)


def lstm(cell: Cell, x: Vector, state: State) -> State:
    h, c = state
    gates = cell.of_input @ x + cell.input_bias + cell.of_state @ h + cell.state_bias
    enter, forget, new, leave = np.split(gates, 4)
    c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(c), c


STEPS: dict[str, tuple[Step, int]] = {"gru": (gru, 1), "lstm": (lstm, 2)}


def run_layers(step: Step, cells: list[Cell], x: Vector, states: list[State]) -> list[State]:
    """Run one step of all layers: the input of each is the h of the layer below."""
    new_states = []
    for cell, state in zip(cells, states, strict=True):
        new_states.append(step(cell, x, state))
        x = new_states[-1][0]
    return new_states


def encode(kind: str, layers: list[tuple[Cell, Cell]], embedded: np.ndarray) -> tuple[np.ndarray, list[State]]:
    """Return annotations (length, hidden), and each layer's last states, forward and backward concatenated."""
    step, parts = STEPS[kind]
    inputs, last = embedded, []
    for forwards, backwards in layers:
        half = forwards.of_state.shape[1]
        forward_state: State = (np.zeros(half),) * parts
        backward_state: State = (np.zeros(half),) * parts
        outputs = np.zeros((len(inputs), 2 * half))
        for j in range(len(inputs)):
            forward_state = step(forwards, inputs[j], forward_state)
            outputs[j, :half] = forward_state[0]
        for j in reversed(range(len(inputs))):
            backward_state = step(backwards, inputs[j], backward_state)
            outputs[j, half:] = backward_state[0]
        last.append(tuple(np.concatenate(pair) for pair in zip(forward_state, backward_state, strict=True)))
        inputs = outputs
    return inputs, last


def softmax(scores: Vector) -> Vector:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def additive(of_query: np.ndarray, of_key: np.ndarray, vector: Vector) -> Weigh:
    """Bahdanau 2015, appendix A.1.2: W_a, U_a, v_a."""
    return lambda query, annotations: softmax(
        np.array([vector @ np.tanh(of_query @ query + of_key @ annotation) for annotation in annotations])
    )


def dot(query: Vector, annotations: np.ndarray) -> Vector:
    """Luong 2015, equation 8, the dot score."""
    return softmax(np.array([query @ annotation for annotation in annotations]))


def general(weight: np.ndarray) -> Weigh:
    """Luong 2015, equation 8, the general score."""
    return lambda query, annotations: softmax(np.array([query @ weight @ annotation for annotation in annotations]))


def concat(weight: np.ndarray, vector: Vector) -> Weigh:
    """Luong 2015, equation 8, the concat score."""
    return lambda query, annotations: softmax(
        np.array([vector @ np.tanh(weight @ np.concatenate([query, annotation])) for annotation in annotations])
    )


def local_p(weight: np.ndarray, of_position: np.ndarray, position_vector: Vector, window: int) -> Weigh:
    """Luong 2015, section 3.2: predictive alignment, with the general score; positions from 0."""

    def weigh(query: Vector, annotations: np.ndarray) -> Vector:
        length, sigma = len(annotations), window / 2
        center = length * sigmoid(position_vector @ np.tanh(of_position @ query))
        inside = [s for s in range(length) if center - window <= s <= center + window]
        align = softmax(np.array([query @ weight @ annotations[s] for s in inside]))
        weights = np.zeros(length)
        for s, aligned in zip(inside, align, strict=True):
            weights[s] = aligned * np.exp(-((s - center) ** 2) / (2 * sigma**2))
        return weights

    return weigh


class Linear(NamedTuple):
    """W x + b."""

    weight: np.ndarray
    bias: Vector | float = 0.0

    def __call__(self, x: Vector) -> Vector:
        return self.weight @ x + self.bias


def initial_states(initial: list[Linear], last: list[State]) -> list[State]:
    return [(np.tanh(linear(state[0])), *state[1:]) for linear, state in zip(initial, last, strict=True)]


def maxout(numbers: Vector) -> Vector:
    return np.array([max(numbers[i], numbers[i + 1]) for i in range(0, len(numbers), 2)])


def cho(
    kind: str, cells: list[Cell], initial: list[Linear], readout: Linear, embedded: np.ndarray, last: list[State]
) -> np.ndarray:
    """Return the readout for each target token (target length, size)."""
    summary, states, readouts = last[-1][0], initial_states(initial, last), []
    for token in embedded:
        states = run_layers(STEPS[kind][0], cells, np.concatenate([token, summary]), states)
        readouts.append(maxout(readout(np.concatenate([states[-1][0], token, summary]))))
    return np.array(readouts)


def bahdanau(
    kind: str,
    cells: list[Cell],
    initial: list[Linear],
    readout: Linear,
    weigh: Weigh,
    embedded: np.ndarray,
    annotations: np.ndarray,
    last: list[State],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the readout of each target token, (target length, size), and weights (target length, source length)."""
    states, readouts, weights = initial_states(initial, last), [], []
    for token in embedded:
        weights.append(weigh(states[-1][0], annotations))
        context = weights[-1] @ annotations
        states = run_layers(STEPS[kind][0], cells, np.concatenate([token, context]), states)
        readouts.append(maxout(readout(np.concatenate([states[-1][0], token, context]))))
    return np.array(readouts), np.array(weights)


def luong(
    kind: str,
    cells: list[Cell],
    mix: np.ndarray,
    weigh: Weigh,
    embedded: np.ndarray,
    annotations: np.ndarray,
    last: list[State],
    *,
    input_feeding: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the readout of each target token, (target length, size), and weights (target length, source length)."""
    states, readouts, weights = last, [], []
    mixed = np.zeros(annotations.shape[1])
    for token in embedded:
        states = run_layers(STEPS[kind][0], cells, np.concatenate([token, mixed]) if input_feeding else token, states)
        hidden = states[-1][0]
        weights.append(weigh(hidden, annotations))
        mixed = np.tanh(mix @ np.concatenate([weights[-1] @ annotations, hidden]))
        readouts.append(mixed)
    return np.array(readouts), np.array(weights)
