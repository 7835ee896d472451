// Reads a stream to its end with the official client, and prints what it was given.
// Usage: node reader.mjs URL long-poll|sse

import { stream } from "@durable-streams/client"

const [url, live] = process.argv.slice(2)
const backoffOptions = { initialDelay: 20, maxDelay: 200, multiplier: 1.3 }
const sseResilience = { logWarnings: false }

let offset = "-1"
let isClosed = false

// What a page would do: the client comes back by itself when it finds nobody, and when a
// connection broke in the middle of a response, one starts again at the last offset.
while (!isClosed) {
  try {
    const response = await stream({ url, offset, live, backoffOptions, sseResilience })
    response.subscribeJson((batch) => {
      for (const item of batch.items) console.log(JSON.stringify(item))
      offset = batch.offset
    })
    await response.closed
    isClosed = response.streamClosed
  } catch (error) {
    if (error.status) throw error
  }
}
