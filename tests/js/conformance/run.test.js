// The protocol's own suite against a server: see tests/conformance.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.STREAMS_URL, longPollTimeoutMs: 3000 })
