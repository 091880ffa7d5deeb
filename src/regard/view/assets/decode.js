// Decoding of numbers from text: the inverse of pack.py, which describes the two encodings.

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function fromFloat32(packed) {
  return new Float32Array(bytesOf(packed).buffer);
}

// A function that decodes the integer at a place, ``letters`` characters each.
function integerReader(packed, letters, alphabet) {
  const place = new Uint8Array(128);
  for (let at = 0; at < alphabet.length; at += 1) place[alphabet.charCodeAt(at)] = at;
  return (at) => {
    let value = 0;
    for (let letter = at * letters; letter < (at + 1) * letters; letter += 1) {
      value = value * alphabet.length + place[packed.charCodeAt(letter)];
    }
    return value;
  };
}

function integersOf(packed, letters, alphabet) {
  const integer = integerReader(packed, letters, alphabet);
  return Uint32Array.from({ length: packed.length / letters }, (_, at) => integer(at));
}

// Each vector: its scale u, then its numbers, ``letters`` characters each; number = (integer - h) / h * 2^(u/64 - 64).
function fromFixed(packed, width, letters, alphabet) {
  const half = (alphabet.length ** letters - 1) / 2;
  const integer = integerReader(packed, letters, alphabet);
  const rows = packed.length / letters / (width + 1);
  const numbers = new Float32Array(rows * width);
  for (let row = 0; row < rows; row += 1) {
    const start = row * (width + 1);
    const scale = 2 ** (integer(start) / 64 - 64);
    for (let c = 0; c < width; c += 1) numbers[row * width + c] = ((integer(start + 1 + c) - half) / half) * scale;
  }
  return numbers;
}

// Decodes the bits of a mask to a function that says whether a query may attend to a key.
function fromBits(packed, keys) {
  const bytes = bytesOf(packed);
  return (query, key) => {
    const bit = query * keys + key;
    return ((bytes[bit >> 3] >> (7 - (bit & 7))) & 1) === 1;
  };
}
