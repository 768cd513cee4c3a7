// Images as PNG data URLs. Their pixels are stored without compression: they stay in this browser.

import { rint } from "./numbers.js";

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];
const MAX_BLOCK_BYTES = 65535;

const CRCS = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

function checksum(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRCS[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

const fourBytes = (value) => [value >>> 24, (value >>> 16) & 255, (value >>> 8) & 255, value & 255];

function chunk(type, content) {
  const body = new Uint8Array(4 + content.length);
  body.set([...type].map((letter) => letter.charCodeAt(0)));
  body.set(content, 4);
  return [fourBytes(content.length), body, fourBytes(checksum(body))];
}

/** A zlib stream of stored blocks. */
function stored(bytes) {
  const parts = [[0x78, 0x01]];
  for (let from = 0; from < bytes.length; from += MAX_BLOCK_BYTES) {
    const block = bytes.subarray(from, from + MAX_BLOCK_BYTES);
    const last = from + block.length === bytes.length ? 1 : 0;
    const [low, high] = [block.length & 255, block.length >>> 8];
    parts.push([last, low, high, ~low & 255, ~high & 255], block);
  }
  let [a, b] = [1, 0];
  for (const byte of bytes) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  parts.push(fourBytes(b * 65536 + a));
  return joined(parts);
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function base64(bytes) {
  let text = "";
  for (let from = 0; from < bytes.length; from += 8192) text += String.fromCharCode(...bytes.subarray(from, from + 8192));
  return btoa(text);
}

const level = (value) => rint(Math.fround(255 * Math.min(1, Math.max(0, value))));

/** An image `{ channels, height, width, data }` with values from 0 to 1: in colour if it has 3 channels, else grey. */
export function dataUrl({ channels, height, width, data }) {
  const size = height * width;
  const shown = channels === 3 ? 3 : 1;
  const rows = new Uint8Array(height * (1 + shown * width));      // each row begins with its filter, 0 for none
  for (let y = 0, at = 0; y < height; y += 1) {
    at += 1;
    for (let i = y * width; i < (y + 1) * width; i += 1) {
      if (shown === 3) for (let c = 0; c < 3; c += 1) rows[at + c] = level(data[c * size + i]);
      else if (channels === 1) rows[at] = level(data[i]);
      else {
        let total = 0;
        for (let c = 0; c < channels; c += 1) total += data[c * size + i];
        rows[at] = level(total / channels);
      }
      at += shown;
    }
  }
  const header = [...fourBytes(width), ...fourBytes(height), 8, shown === 3 ? 2 : 0, 0, 0, 0];
  const chunks = [...chunk("IHDR", header), ...chunk("IDAT", stored(rows)), ...chunk("IEND", [])];
  return `data:image/png;base64,${base64(joined([SIGNATURE, ...chunks]))}`;
}
