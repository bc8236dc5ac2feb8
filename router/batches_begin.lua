-- The input was read. ARGV: prefix, id, owner, lines; or errors (JSON), event, kept ms where it is not good
-- Returns 1 | 0 (another's, or begun already)
local now, state = now_ms(), redis.call('HGET', key, 'state')
if not is_mine() or redis.call('HEXISTS', key, 'total') == 1 then return 0 end
if #ARGV > 4 then
  redis.call('HSET', key, 'errors', ARGV[4])
  end_batch('failed', ARGV[5], ARGV[6], now)
else
  redis.call('HSET', key, 'total', ARGV[4])
  if state == 'validating' then set_state('in_progress', now) end
end
return 1
