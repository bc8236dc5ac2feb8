-- A call has left the replica, and its server says when it ran there. ARGV: prefix, replica, id, tokens, from, to. Returns 1
local now = now_ms()
local from, to = math.min(tonumber(ARGV[5]), now), math.min(tonumber(ARGV[6]), now)
leave(ARGV[2], ARGV[3], math.max(from, to), ARGV[4], from)
return 1
