-- Shared by the scripts of batches; see board_functions.lua for what a batch consists of.

local id, key = ARGV[2], P .. 'batch:' .. ARGV[2]

local function is_mine()
  return redis.call('HGET', key, 'owner') == ARGV[3]
end

local function set_state(state, now)
  redis.call('HSET', key, 'state', state, 'at:' .. state, whole(now))
  batch_event(key, id, state, now)
end

-- The end of a batch: its event waits in the outbox, its input is not needed any more, and it is kept for a while.
local function end_batch(state, event, kept_ms, now)
  local input = P .. 'file:' .. redis.call('HGET', key, 'input')
  if redis.call('EXISTS', input) == 1 then redis.call('HINCRBY', input, 'uses', -1) end
  redis.call('HSET', P .. 'outbox', id .. ':event', whole(now) .. '\n' .. event)
  set_state(state, now)
  redis.call('DEL', key .. ':open', key .. ':ended', key .. ':out', key .. ':err')
  redis.call('PEXPIRE', key, kept_ms)
  redis.call('PEXPIRE', key .. ':events', kept_ms)
end
