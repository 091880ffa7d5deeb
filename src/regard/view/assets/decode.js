// Text back to numbers: the other half of pack.py, which gives the two encodings.

const HALF = 4140; // fixed13: (91 * 91 - 1) / 2

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function fromFloat32(packed) {
  return new Float32Array(bytesOf(packed).buffer);
}

// Each vector: its scale u, then its numbers, two letters each; number = (integer - 4140) / 4140 * 2^(u/64 - 64).
function fromFixed13(packed, width, alphabet) {
  const place = new Uint8Array(128);
  for (let at = 0; at < alphabet.length; at += 1) place[alphabet.charCodeAt(at)] = at;
  const integer = (pair) => place[packed.charCodeAt(2 * pair)] * 91 + place[packed.charCodeAt(2 * pair + 1)];
  const rows = packed.length / 2 / (width + 1);
  const numbers = new Float32Array(rows * width);
  for (let row = 0; row < rows; row += 1) {
    const start = row * (width + 1);
    const scale = 2 ** (integer(start) / 64 - 64);
    for (let c = 0; c < width; c += 1) numbers[row * width + c] = ((integer(start + 1 + c) - HALF) / HALF) * scale;
  }
  return numbers;
}

// A mask's bits to a function: may this query attend to this key?
function fromBits(packed, keys) {
  const bytes = bytesOf(packed);
  return (query, key) => {
    const bit = query * keys + key;
    return ((bytes[bit >> 3] >> (7 - (bit & 7))) & 1) === 1;
  };
}
